"""`phlox launch`: starting the processes of a program on one host or several, and ending all of them."""
