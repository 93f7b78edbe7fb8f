"""Instrumented builds: the same compiled kernel, which also writes down where its time goes."""
