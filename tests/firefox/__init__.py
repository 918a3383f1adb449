"""The main journeys in Firefox."""
