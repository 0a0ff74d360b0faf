"""The command line: one module a verb; options, one call, print, exit code."""
