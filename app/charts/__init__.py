"""Results to chart specifications. No colours here, only names of tokens; no rows of the database either."""
