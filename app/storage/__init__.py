"""Rows in the database and files beside it. Nothing of SQLAlchemy leaves this room."""
