"""What a compiled step will do, read before it runs."""
