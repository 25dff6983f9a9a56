"""What a data set holds and what looks wrong with it: a pass over all pictures, figures, findings and a drawing."""
