"""The configuration of a run: schema, checks, equality of two configurations, and sweep settings."""
