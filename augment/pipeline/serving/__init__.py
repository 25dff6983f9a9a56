"""The validation transform without DALI, for exported models."""
