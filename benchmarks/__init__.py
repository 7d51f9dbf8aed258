"""Measures this queue and its peers side by side, on one server, in one run. See README.md."""
