"""The processes of one program: their launcher, how they find each other, plain data between them."""
