"""Follows the session files of coding agents; see README.md."""

__version__ = "0.1.0"
