"""Shipped facts (hardware profiles, models), each with its source, and the JSON shape they share with the API."""
