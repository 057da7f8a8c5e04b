create table orders (key text primary key, made_at timestamptz not null default now());
create table stock (item text primary key, taken bigint not null);
insert into stock values ('book', 0);
