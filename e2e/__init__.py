"""End-to-end tests: a real API server, real pods, and the means to get both."""
