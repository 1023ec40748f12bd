"""Answers of a call in OpenAI's shapes: completions, chat, log-probabilities."""
