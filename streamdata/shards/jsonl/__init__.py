"""JSON Lines and CSV: bytes ↔ rows."""
