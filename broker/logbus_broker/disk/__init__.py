"""The operating system's side of the log: files, their names and descriptors, flushes that the kernel runs by itself."""
