"""The command line: argument parser and commands."""
