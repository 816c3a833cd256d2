"""Fine-tuning: from data files to what each step trains on."""
