"""Process functions: from records to samples."""
