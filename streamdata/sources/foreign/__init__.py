"""Sources over datasets that others wrote."""
