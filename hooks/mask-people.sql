-- Masks the people of a shop in a clone. An example: put your own tables here, end each statement with a semicolon.
--   [instance.main.masking]
--   required = true
--   run = ["/etc/zsnapdb/hooks/mask-people.sql"]
-- The same person becomes the same pseudonym everywhere, so that joins go on working; nobody's name can be computed back from a number.
SET @salt = HEX(RANDOM_BYTES(16));
UPDATE shop.customers SET
  name  = CONCAT('Customer ', id),
  email = CONCAT('c', LEFT(SHA2(CONCAT(@salt, email), 256), 16), '@example.invalid'),
  phone = NULL,
  birthday = MAKEDATE(YEAR(birthday), 1);
UPDATE shop.addresses SET street = 'Main Street 1', postcode = LEFT(postcode, 2);
DELETE FROM shop.sessions;
TRUNCATE TABLE shop.outgoing_mail;
