"""Bytes to messages and back. No I/O, no clock: frames, headers, the generated codec, record batches."""
