"""Instrumented builds: copies of a compiled kernel that also record where their time goes."""
