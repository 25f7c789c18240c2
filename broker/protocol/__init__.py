"""Bytes to messages and back. No I/O, no clock: frames, headers, the control plane's codec adapter, and the hand-written hot
codecs.
"""
