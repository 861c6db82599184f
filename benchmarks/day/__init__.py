"""A day, replayed: whole cards for the peak against slices by the hour, on the same load."""
