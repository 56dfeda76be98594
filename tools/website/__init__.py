"""The documentation site: ``make docs`` builds it from docs/ into build/docs."""
