"""Topics as tables of a SQL query."""
