"""What each replica reads: shards and slices of the user's data."""

from keras_mwms.data.choose import shard as shard
from keras_mwms.data.policy import AutoShardPolicy as AutoShardPolicy
from keras_mwms.data.policy import policy_of as policy_of
