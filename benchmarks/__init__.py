"""local-lab: honest trials of coding agents against locally served models."""
