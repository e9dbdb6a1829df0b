"""The processes of one program: who started them, how they find each other, plain data between them."""
