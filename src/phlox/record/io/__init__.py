"""Byte level: files, compression, checksums and archives."""
