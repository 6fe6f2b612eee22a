import sys

# Amaranth's simulator prints masks of signals in decimal: a weight beat of 64 rows has 16,896 bits.
sys.set_int_max_str_digits(0)
