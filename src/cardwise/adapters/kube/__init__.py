"""The API server: what programs need of it (``port``), and how it is reached (``client``, ``feed``)."""
