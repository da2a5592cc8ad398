"""How the places of rows are packed: the first stream is the rows' values, as they are; the rest says where."""
