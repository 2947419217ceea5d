"""The web pages of the agent."""
