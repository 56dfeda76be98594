"""The pieces of ``Forecaster``, in reading order: panel, season, views, states, design, ridge, direct, rolling."""
