"""Targets: each turns the tile program of a step into something that runs."""
