"""The contracts as functions, run over every row of the catalogue and over users' own plug-ins."""
