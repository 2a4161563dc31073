"""The demo: a photograph through a bank of filters, on hardware im2col or in the interpreter."""
