"""The v2 record batch: header view, checksum, offsets, validation, records. Bytes in, values out; no files, clock or sockets."""
