"""The omnizen command; its modules import nothing heavy at the top."""
