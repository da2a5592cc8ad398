"""Who shares what, and when: frozen rows."""
