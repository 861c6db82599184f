"""Stubs generated from the ``.proto`` files beside them by ``make stubs``; never edited by hand."""
