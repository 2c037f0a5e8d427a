"""Generates the reference pages of docs/ from the code: `python -m docgen`, or `make docs`."""
