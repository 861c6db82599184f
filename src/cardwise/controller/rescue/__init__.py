"""Parts of :mod:`cardwise.controller.rescuing`."""
