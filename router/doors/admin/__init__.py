"""The service for operators and viewers: status queries and acts."""
