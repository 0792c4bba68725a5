"""Process functions for tokens: tokenizing, packing, and grouping by length."""
