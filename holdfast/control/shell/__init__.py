"""The loop around deciding: campaign, lead, observe, carry out, clean up; and its process."""
