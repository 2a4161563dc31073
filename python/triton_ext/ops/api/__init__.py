"""Public functions of ``ops``: signatures, argument checks, ``support``, operators of torch."""
