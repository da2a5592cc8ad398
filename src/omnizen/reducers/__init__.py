"""How contributions are combined into their average; state lives here."""
