"""State on disk: processes that write are killed at any moment, and what they leave is read by the real readers."""
