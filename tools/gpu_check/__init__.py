"""Tries the study and the library on this machine's GPUs, in under ten minutes: docs/gpu.md."""
